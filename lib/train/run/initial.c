#include "train/run/initial.h"

#include <stdlib.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"

/* Opens the newest checkpoint of the run that can be opened; returns NULL if it has none. */
static struct vfm_ckpt *open_begun(const char *dir)
{
	char *ckpts = dir ? vfm_strfmt("%s/ckpt", dir) : NULL;
	struct vfm_ckpt *c = NULL;
	int64_t *steps = NULL;
	struct vfm_err ignore;
	size_t n = 0;

	if (ckpts && vfm_ckpt_steps(ckpts, false, &steps, &n, &ignore) < 0)
		n = 0;
	while (!c && n > 0) {
		char *path = vfm_ckpt_path(ckpts, steps[--n]);

		if (vfm_ckpt_open(&c, path, &ignore) < 0)
			c = NULL;
		free(path);
	}
	free(steps);
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
