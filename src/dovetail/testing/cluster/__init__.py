"""Random clusters for every policy at once (`fuzz`), and random problems for single policies (`problems`)."""
