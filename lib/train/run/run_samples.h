/* run_samples.h - the samples that a run generated during training (preview.h), for its report. */
#ifndef VFM_TRAIN_RUN_RUN_SAMPLES_H
#define VFM_TRAIN_RUN_RUN_SAMPLES_H

#include "base/err.h"
#include "base/mem.h"

/* Appends the samples in RUN/samples as figures: a row for each of the first four samples, with up to six evaluations,
 * the first and the last among them.  Small pictures are within the page, of large pictures and of videos a frame; a
 * video has a relative link. page_dir: the folder of the page.  *room: bytes that pictures may take, reduced by those
 * of this call.  A picture that cannot be decoded is left out.  Returns the number of figures. */
int vfm_run_samples_html(struct vfm_buf *b, const char *run_dir, const char *page_dir, size_t *room);

#endif
