"""`python -m bench.llm`: language models, Tilewright beside llama.cpp and OpenVINO GenAI."""
