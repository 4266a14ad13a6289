/* data/dataset - shards of samples and their index: builds, reads, joins and verifies indexes; datasets of Energon and
 * MDS; subsets; downloads and the cache of remote shards.
 *
 * Used by: data/loader, data/plan, train/run, train/sample, vfm-bench, vfm-curate, vfm-pack
 * Calls: base, data/record, io, media/av, spec/model
 * Read first: index.h, scan.h, dataset.h, shard_cache.h
 */
