"""Images in prompts: reading them, the encoders' common parts, and their places among a prompt's tokens."""
