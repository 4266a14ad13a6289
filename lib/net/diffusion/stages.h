/* stages.h - the forward of a model whose layers pp stages divide, without gradients: for held-out data and samples.
 *
 *	TRY(vfm_stages_new(&s, mesh, stream, err));
 *	TRY(vfm_stages_forward(&s, model, &in, &pred, err));
 *	... use pred
 *	vfm_stages_end(&s);
 */
#ifndef VFM_NET_DIFFUSION_STAGES_H
#define VFM_NET_DIFFUSION_STAGES_H

#include "net/diffusion/model.h"
#include "net/tape/tape.h"

struct vfm_stages { /* `= {0}` may be released */
	const struct vfm_mesh *mesh;
	struct vfm_stream *stream;
	struct vfm_tape *tape;
	struct vfm_event *ready, *sent; /* order a send after the compute stream, and the reverse */
};

/* Local.  Release *s in any case.  mesh and stream must outlive it. */
int vfm_stages_new(struct vfm_stages *s, const struct vfm_mesh *mesh, struct vfm_stream *stream, struct vfm_err *err);
/* Collective over mesh->group[VFM_AX_PP], and over the groups within layers.  in must stay valid until vfm_stages_end.
 * *pred: the prediction [rows,F] f32 of this rank's tokens on the last pp stage, valid until vfm_stages_end; without
 * data on the others. */
int vfm_stages_forward(struct vfm_stages *s, struct vfm_model *m, const struct vfm_model_in *in,
	struct vfm_tensor *pred, struct vfm_err *err);
void vfm_stages_end(struct vfm_stages *s);
void vfm_stages_release(struct vfm_stages *s);

#endif
