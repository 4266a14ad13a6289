/* media/draw - pages, charts, pictures.
 *
 * - all HTML pages: escaped text, cards, tables, bars, pictures (html.h)
 * - charts as SVG (chart.h) of curves in bounded memory (trace.h)
 * - PNG; synthetic clips
 *
 * Used by: curate/pipeline, curate/report, train/predict, train/run, vfm-bench, vfm-curate
 * Calls: base, io
 * Read first: html.h, chart.h
 */
