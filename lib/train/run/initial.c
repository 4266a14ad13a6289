#include "train/run/initial.h"

#include "ckpt/ckpt.h"
#include "train/run/candidates.h"

int vfm_config_initial(struct vfm_config *c, const char *path, const char *dir, struct vfm_err *err)
{
	struct vfm_ckpt *from = NULL;
	/* what the network is trained to do, and for which noise */
	static const char *const keys[] = {"kind", "t_min", "t_max"};
	json_t *json, *diffusion;
	struct vfm_config had;
	int rc;

	if (dir)
		TRY(vfm_candidates_newest(dir, &from, NULL, err));
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
	rc = vfm_config_json(&had, json, err);
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
