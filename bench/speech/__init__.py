"""`python -m bench.speech`: speech to text, Tilewright compared with faster-whisper."""
