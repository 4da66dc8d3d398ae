"""Devices with OpenCL: OpenCL C from block programs, compiled by the driver."""
