/* curate/table - data of other programs as records: CSV, JSON, joins of a table to records, samples of WebDataset tars,
 * and captions in text files and tables next to media.  (data/record/caption.h describes the captions of records.)
 *
 * Used by: vfm-curate
 * Calls: base, data/record, io, media/av
 * Read first: rows.h, join.h, tar_samples.h, caption_files.h
 */
