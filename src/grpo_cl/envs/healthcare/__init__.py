"""Patient service of a group of clinics with synthetic data."""
