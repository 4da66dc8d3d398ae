"""Language models over several processes: their layers divided, a runner that leads workers."""
