/* data/record - records of JSON Lines and the stages that work on them.
 *
 * - the loop of a stage, shares of records, --done, provenance, encoder identities
 * - captions, extra arrays, digests that bind a record to its files, keys of samples
 * - the frames of a record, thumbnails, buckets, feature sets
 * - histograms, reasons of drops
 *
 * Used by: curate, data, encoder/encode, encoder/exec, train/job, train/run, train/sample, train/step, vfm-bench,
 *   vfm-ckpt, vfm-curate, vfm-pack, vfm-sample
 * Calls: base, io, media/av, spec/model
 * Read first: stage.h, record.h, provenance.h, encoder_id.h
 */
