/* data/record - records of JSON Lines and the stages that work on them.
 *
 * The loop of a stage, shares of records, --done, provenance and makers, captions, keys of samples, the frames of
 * a record, feature sets.
 *
 * Used by: vfm-curate, data/dataset, encoder, curate
 * Calls: base, io, media/av, spec/model
 * Read first: stage.h, record.h, provenance.h, maker.h
 */
