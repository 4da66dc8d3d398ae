#include "tw_sim/wmma.h"
