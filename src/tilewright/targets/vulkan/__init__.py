"""Vulkan: GLSL from block programs, compiled to SPIR-V."""
