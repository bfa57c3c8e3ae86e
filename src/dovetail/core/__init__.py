"""What all levels share: typed work, typed capacity, rates and prices, one loop, one journal. Knows no level."""
