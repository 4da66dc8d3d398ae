"""`python -m bench.llm`: language models, Tilewright compared with llama.cpp and OpenVINO GenAI."""
