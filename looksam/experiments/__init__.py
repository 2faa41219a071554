"""The paper's tables and figures, at full scale and at desk scale: what is asked, trained, stored and said."""
