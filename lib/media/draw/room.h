/* media/draw - pictures, plots, pages.
 *
 * RGB pictures, text in them, PNG; plots, contact sheets, synthetic clips; HTML pages with charts.
 *
 * Used by: curate/pipeline, curate/report, train/predict, train/run, vfm-bench, vfm-curate
 * Calls: base, io, media/av
 * Read first: image.h, plot.h, html.h
 */
