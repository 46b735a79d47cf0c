"""Floor 1: records, relaxed arithmetic, units, errors, balance and attention."""
