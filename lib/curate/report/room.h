/* curate/report - the page about records: counts of reasons and sources, histograms of numbers, frequent words,
 * pictures; duplicates next to their originals.
 *
 * Used by: vfm-curate
 * Calls: base, data/record, io, media/draw
 * Read first: report.h
 */
