"""Batches on real devices: the dispatcher, its pool of workers, and the back ends behind them."""
