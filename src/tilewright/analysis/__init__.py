"""Analyses: read-only queries on modules and loop nests that passes, schedules and code generators share."""
