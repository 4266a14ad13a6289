/* data/plan - the order of the training data as a file: blends with weights over steps, the split into training and
 * held-out data, packing, the file of vfm-pack, and its statistics.
 *
 * Used by: data/loader, train, vfm-bench, vfm-curate, vfm-pack, vfm-train
 * Calls: base, data/dataset, data/record, io, spec/layout
 * Read first: plan.h, pack.h, blend.h
 */
