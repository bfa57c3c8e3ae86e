"""What a simulation is made of: clusters, throughputs, prices, traces and generated jobs; `scenario` reads all."""
