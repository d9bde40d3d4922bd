"""Stages stores: one verified copy on a local disk, made by one process of the machine, from which training reads."""
