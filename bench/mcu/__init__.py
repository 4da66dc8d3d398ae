"""Microcontrollers: the MLPerf Tiny networks in int8 beside CMSIS-NN, counted by QEMU."""
