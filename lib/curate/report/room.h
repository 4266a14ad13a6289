/* curate/report - the page about records: hours kept and lost by reason and source, histograms of numbers, pictures,
 * duplicates next to their originals, captions.
 *
 * Used by: vfm-curate
 * Calls: base, data/record, io, media/av, media/draw, media/score
 * Read first: report.h, account.h
 */
