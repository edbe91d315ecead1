"""Food delivery: restaurants, menus, orders, refunds and dashers, all made up here."""
