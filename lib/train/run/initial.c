#include "train/run/initial.h"

#include <stdlib.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "train/run/candidates.h"

/* Opens the newest checkpoint that the run in dir can resume from; returns NULL if there is none.  The run says later
 * why it rejects others. */
static struct vfm_ckpt *open_begun(const char *dir)
{
	char *ckpts = dir ? vfm_strfmt("%s/ckpt", dir) : NULL;
	struct vfm_candidates k = {0};
	struct vfm_ckpt *c = NULL;
	struct vfm_err why;
	const char *path;

	if (ckpts && vfm_candidates_list(&k, dir, ckpts, "auto", &why) == 0)
		while (!c && (path = vfm_candidates_next(&k)))
			if (vfm_candidate_open(&c, path, &why) < 0)
				vfm_candidates_reject(&k, why.msg);
	vfm_candidates_release(&k);
	free(ckpts);
	return c;
}

int vfm_config_initial(struct vfm_config *c, const char *path, const char *dir, struct vfm_err *err)
{
	struct vfm_ckpt *from = open_begun(dir);
	/* what the network is trained to do, and for which noise */
	static const char *const keys[] = {"kind", "t_min", "t_max"};
	json_t *json, *diffusion;
	struct vfm_config had;
	int rc;

	if (!from)
		TRY(vfm_ckpt_open(&from, path, err));
	json = json_object();
	if (json_object_get(from->config, "model"))
		json_object_set(json, "model", json_object_get(from->config, "model"));
	diffusion = json_object();
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		json_object_set(
			diffusion, keys[i], json_object_get(json_object_get(from->config, "diffusion"), keys[i]));
	json_object_set_new(json, "diffusion", diffusion);
	had = *c;
	TRY_OUT(vfm_ckpt_want_model(from, err));
	rc = vfm_config_saved(&had, json, err);
	if (rc == 0) {
		c->model = had.model;
		c->diffusion = had.diffusion;
	} else {
		vfm_err_context(err, "%s: configuration", from->path);
	}
out:
	json_decref(json);
	vfm_ckpt_close(from);
	return rc;
}
