"""A year of a few stores, in coarse steps: what days, months and upgrades leave behind.

python -m sim --year
"""
