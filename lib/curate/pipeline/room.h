/* curate/pipeline - many stages as one program: the file of a pipeline, its processes, its progress, and the page about
 * it.
 *
 * Used by: vfm-curate
 * Calls: base, data/record, io, media/draw
 * Read first: pipeline_run.h
 */
