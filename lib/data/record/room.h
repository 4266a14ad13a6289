/* data/record - records of JSON Lines and the stages that work on them.
 *
 * The loop of a stage, shares of records, --done, provenance and encoder identities.  Captions, extra arrays, digests
 * that bind a record to its files, keys of samples.  The frames of a record, thumbnails, buckets, feature sets,
 * histograms, reasons of drops.
 *
 * Used by: curate, data, encoder/encode, encoder/exec, train/job, train/run, vfm-bench, vfm-ckpt, vfm-curate,
 *   vfm-pack, vfm-sample
 * Calls: base, io, media/av, spec/model
 * Read first: stage.h, record.h, provenance.h, encoder_id.h
 */
