/* curate/pipeline - many stages as one program.
 *
 * The file of a pipeline, its processes, its progress; the pages about a run and about records.
 *
 * Used by: vfm-curate run and report
 * Calls: base, data/record, io, media/draw
 * Read first: pipeline_run.h, report.h
 */
