/* tfevents.h - scalars and pictures in TensorBoard's event file format (TFRecord framing with masked crc32c around
 * Event protocol buffers).  No C library writes it.
 */
#ifndef VFM_TRAIN_RUN_TFEVENTS_H
#define VFM_TRAIN_RUN_TFEVENTS_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"

#define VFM_TFEVENTS_PREFIX "events.out.tfevents."

struct vfm_tfevents {
	FILE *f;
	char *path;
};

/* Creates dir/events.out.tfevents.<time>.<host>.<pid>.  TensorBoard then discards events of step first_step and later
 * in older files, since the run repeats these steps. */
int vfm_tfevents_open(struct vfm_tfevents *e, const char *dir, int64_t first_step, struct vfm_err *err);
int vfm_tfevents_scalar(struct vfm_tfevents *e, int64_t step, const char *tag, double value, struct vfm_err *err);
/* png: the encoded picture. */
int vfm_tfevents_image(struct vfm_tfevents *e, int64_t step, const char *tag, const struct vfm_buf *png, int width,
	int height, struct vfm_err *err);
int vfm_tfevents_flush(struct vfm_tfevents *e, struct vfm_err *err);
/* Reads the time when a file was opened, in seconds since 1970, and its first_step.  VFM_EINPUT: it is not an event
 * file. */
int vfm_tfevents_start(const char *path, double *time, int64_t *first_step, struct vfm_err *err);
void vfm_tfevents_close(struct vfm_tfevents *e);

#endif
