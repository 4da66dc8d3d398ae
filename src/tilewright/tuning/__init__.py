"""The autotuner: search spaces of schedule rules, the search, measuring, and the database of trials. It knows
no compiler; what compiles and what measures a candidate is given to it."""
