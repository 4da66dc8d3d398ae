"""Speech to text with models like Whisper: recordings, spectrograms, rules of timestamps, transcription."""
