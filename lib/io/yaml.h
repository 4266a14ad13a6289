/* yaml.h - reads YAML by libyaml as JSON: configurations (document.h), and the files of Megatron-Energon.
 *
 * A plain scalar is null, a boolean, a decimal number or a string by the core schema of YAML 1.2 (yaml.org/spec/1.2.2),
 * so "no" and "on" are strings.  A key is its text.  Anchors, aliases, tags, a second document, equal keys of a mapping
 * and more than 32 levels are refused.
 */
#ifndef VFM_IO_YAML_H
#define VFM_IO_YAML_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Parses text [len]; name is for messages.  Returns a new reference; an empty document is null.  NULL: VFM_EUSAGE,
 * which names the line. */
json_t *vfm_yaml_parse(const char *text, size_t len, const char *name, struct vfm_err *err);

/* Returns whether a file is YAML: its name ends in .yaml or .yml. */
bool vfm_yaml_is_name(const char *path);

#endif
