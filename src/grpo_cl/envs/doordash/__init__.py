"""Food delivery with synthetic data: restaurants, menus, orders, refunds and dashers."""
