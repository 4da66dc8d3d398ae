"""AMD GPUs: HIP C++ from block programs, compiled by zig's clang."""
