/* media/draw - pages, charts, pictures.
 *
 * What all HTML pages are made of: escaped text, cards, tables, bars, pictures (html.h); axes and charts of curves as
 * SVG (chart.h), curves in bounded memory (trace.h); PNG; synthetic clips.
 *
 * Used by: curate/pipeline, curate/report, train/predict, train/run, vfm-bench, vfm-curate
 * Calls: base, io
 * Read first: html.h, chart.h
 */
