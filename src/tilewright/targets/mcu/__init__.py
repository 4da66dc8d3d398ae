"""Microcontrollers: static memory, no operating system."""
