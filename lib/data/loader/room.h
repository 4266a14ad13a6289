/* data/loader - packs of a plan from shards.
 *
 * Reads ahead in threads; ranks of a node that need the same pack read it once, into memory that they share.
 *
 * Used by: train/run, vfm-bench
 * Calls: base, data/dataset, data/plan, data/record, io, spec/layout, spec/model
 * Read first: loader.h
 */
