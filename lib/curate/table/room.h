/* curate/table - tables and tars of other programs as records: CSV, JSON, joins of a table to records, samples of
 * WebDataset tars.
 *
 * Used by: vfm-curate
 * Calls: base, data/record, io, media/av
 * Read first: rows.h, join.h, tar_samples.h
 */
