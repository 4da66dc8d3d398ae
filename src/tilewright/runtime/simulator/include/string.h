#include "tw_sim/math.h"
