"""First light: one instance, one load, five ways to batch; then a bad setting planted, with the tuner off and on."""
