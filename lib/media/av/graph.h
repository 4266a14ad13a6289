/* graph.h - a chain of FFmpeg's filters with one input and one output.
 *
 * The caller sends a frame, then receives until there is none.  One thread at a time.
 */
#ifndef VFM_MEDIA_AV_GRAPH_H
#define VFM_MEDIA_AV_GRAPH_H

#include <libavcodec/avcodec.h>
#include <libavutil/frame.h>
#include <libavutil/rational.h>
#include <stdbool.h>

#include "base/err.h"

struct vfm_graph;

/* Whether this build of FFmpeg has all filters of a list "a,b,…".  Otherwise stores the name of one that it lacks. */
bool vfm_graph_has(const char *filters, char missing[32]);

/* A chain for frames of the size and format of `like`.  VFM_EINPUT: the chain does not take such frames. */
int vfm_graph_video(
	struct vfm_graph **g, const AVFrame *like, AVRational time_base, const char *chain, struct vfm_err *err);
/* A chain for decoded audio.  `like` gives rate, format and channels. */
int vfm_graph_audio(
	struct vfm_graph **g, const AVFrame *like, AVRational time_base, const char *chain, struct vfm_err *err);
void vfm_graph_free(struct vfm_graph *g); /* NULL is fine */

AVRational vfm_graph_time_base(const struct vfm_graph *g); /* of the frames that are received */

/* Sends a frame; the chain keeps a reference.  NULL: the end. */
int vfm_graph_send(struct vfm_graph *g, AVFrame *f, struct vfm_err *err);
/* Returns 1 with the next frame in `f`, or 0 if there is none. */
int vfm_graph_receive(struct vfm_graph *g, AVFrame *f, struct vfm_err *err);

#endif
