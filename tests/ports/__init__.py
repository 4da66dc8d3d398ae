"""Artifacts for other processors and systems, run in emulators: QEMU's user mode and Wine."""
