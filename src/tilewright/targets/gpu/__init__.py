"""Code shared by the targets that are GPUs."""
